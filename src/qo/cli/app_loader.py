"""Finds the app that `qo worker module:attribute` names."""

import importlib
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from qo import destinations
from qo.app import App
from qo.engines import with_options
from qo.errors import InvalidSetting
from qo.tasks import Registry

_DEFAULT_ATTRIBUTE = "app"


def load_app(target: str, url: str | None, options: Mapping[str, str] | None = None) -> App:
    """The app that `target` names. With `url`, it and all apps of the same store use that store instead."""
    destinations.pin()
    name, _, attribute = target.partition(":")
    module = _import(name)
    app = _as_app(_find(module, attribute or _DEFAULT_ATTRIBUTE, target), target)
    if not len(app.registry):
        raise InvalidSetting(f"{target} has no tasks; import the module that declares them")
    if options:
        url = with_options(url or app.url, options)
    if url is not None:
        destinations.serve(app.url, url)
        app.url = url  # raises if the program has used the app already
    return app


def _import(name: str) -> ModuleType:
    if name.endswith(".py") or not name or not all(part.isidentifier() for part in name.split(".")):
        hint = f"; did you mean {name[:-3].replace('/', '.')}:{_DEFAULT_ATTRIBUTE}?" if name.endswith(".py") else ""
        raise InvalidSetting(f"{name!r:.80} is not a module; use module:attribute, such as myproject.tasks:app{hint}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise InvalidSetting(f"there is no module {error.name!r} in {here} or in the installed packages") from error
        raise InvalidSetting(_import_error(name, error)) from error
    except Exception as error:
        raise InvalidSetting(_import_error(name, error)) from error


def _import_error(name: str, error: Exception) -> str:
    """The error of an import, and its place in the user's code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""
    return f"{name} cannot be imported: {type(error).__name__}: {error}{where}"


def _find(module: ModuleType, attribute: str, target: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            apps = sorted(name for name, value in vars(module).items() if isinstance(value, App))
            hint = f"; did you mean {module.__name__}:{apps[0]}?" if apps else ""
            raise InvalidSetting(f"{target}: {module.__name__} has no attribute {part!r}{hint}")
        found = getattr(found, part)
    return found


def _as_app(found: Any, target: str) -> App:
    if isinstance(found, App):
        return found
    registry = getattr(found, "registry", None)
    if not isinstance(registry, Registry):
        raise InvalidSetting(f"{target} is a {type(found).__name__}, not a qo.App")
    inner = getattr(found, "app", None)
    app = inner if isinstance(inner, App) else App()
    app.registry = registry
    return app
