from __future__ import annotations

from django.contrib.admin import AdminSite
from django.utils.translation import gettext_lazy as _


class BrokerAdminSite(AdminSite):
    site_header = "Broker"
    site_title = "Broker"
    index_title = _("Overview")
    site_url = "/status/"
