from tests.support.server import _broker_world as _broker_world
from tests.tasks.conftest import world as world
