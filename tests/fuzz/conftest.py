from tests.support.server import _broker_world as _broker_world
