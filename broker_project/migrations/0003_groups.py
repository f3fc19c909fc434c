"""The groups for viewers, operators and admins. Their permissions follow when they exist: see groups.py."""

from django.db import migrations


def make_groups(apps, schema_editor):
    group = apps.get_model("auth", "Group")
    for name in ("viewer", "operator", "admin"):
        group.objects.using(schema_editor.connection.alias).get_or_create(name=name)


class Migration(migrations.Migration):
    dependencies = [
        ("broker", "0002_redis_permissions"),
        ("auth", "0012_alter_user_first_name_max_length"),
    ]
    operations = [migrations.RunPython(make_groups, migrations.RunPython.noop)]
