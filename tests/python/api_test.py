"""The package's surface: documented, annotated, and the same as its stubs."""

import dataclasses
import inspect
import pathlib
import pickle
import pydoc
import subprocess
import sys
import typing

import agmm
import agmm.aio
import pytest
from agmm import _agmm, dtypes, requests
from nanobind import stubgen


def test_the_stubs_are_those_of_the_extension():
    """nanobind.stubgen -m agmm._agmm -o client/python/agmm/_agmm.pyi makes them."""
    generator = stubgen.StubGen(_agmm)
    generator.put(_agmm)
    stubs = pathlib.Path(agmm.__file__).with_name("_agmm.pyi").resolve()
    assert stubs.read_text() == generator.get()


PUBLIC = {name: getattr(agmm, name) for name in agmm.__all__}


def members():
    for name, value in PUBLIC.items():
        yield name, value
        if inspect.isclass(value):
            for member, inner in vars(value).items():
                if not member.startswith("_") and (callable(inner) or isinstance(inner, (property, classmethod, staticmethod))):
                    yield f"{name}.{member}", inner


MEMBERS = dict(members())


def test_the_version_is_that_of_the_library(client):
    assert client.world().version.startswith(f"{agmm.__version__} ")


def test_all_names_are_public():
    assert sorted(agmm.__all__) == list(agmm.__all__)
    assert not any(name.startswith("_") for name in agmm.__all__)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_public_name_is_documented(name):
    doc = inspect.getdoc(MEMBERS[name])
    assert doc and doc[0].isupper() and not doc.startswith(f"{name}("), doc  # not made by dataclass
    assert doc.rstrip().endswith((".", ")")), doc


@pytest.mark.parametrize("name", [name for name, value in MEMBERS.items() if inspect.isfunction(value) or isinstance(value, property)])
def test_a_public_function_is_annotated(name):
    value = MEMBERS[name]
    signature = inspect.signature(value.fget if isinstance(value, property) else value)
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in signature.parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty or parameter.name == "self", parameter


def annotated():
    for name, value in {**PUBLIC, **{f"aio.{name}": getattr(agmm.aio, name) for name in agmm.aio.__all__}}.items():
        yield name, value, value.__module__
        if inspect.isclass(value):
            yield from ((f"{name}.{member}", inner, value.__module__) for member, inner in vars(value).items()
                        if inspect.isfunction(inner))


ANNOTATED = {name: (value, module) for name, value, module in annotated()}


@pytest.mark.parametrize("name", ANNOTATED)
def test_annotations_have_a_meaning(name):
    """Modules that import each other name some types for type checkers alone."""
    value, module = ANNOTATED[name]
    for_checkers = {**PUBLIC, "Unpack": typing.Unpack, "Progress": agmm.client.Progress}
    typing.get_type_hints(value, {**for_checkers, **vars(sys.modules[module])})


@pytest.mark.parametrize("kind", [agmm.JobOptions, agmm.Rule])
def test_help_explains_each_field(kind):
    text = pydoc.render_doc(kind, renderer=pydoc.plaintext)
    for name in kind.__annotations__:
        assert f"|  {name}: " in text, name


def test_a_client_that_is_pickled_says_what_to_send(client):
    with pytest.raises(TypeError, match="send its endpoint"):
        pickle.dumps(client)


def test_descriptions_are_frozen():
    for name in ("JobEvent", "JobFigures", "JobInfo", "Moved", "SessionInfo", "Shard", "WorldDevice", "WorldInfo"):
        assert PUBLIC[name].__dataclass_params__.frozen, name
        assert {field.name for field in dataclasses.fields(PUBLIC[name])} <= set(PUBLIC[name].__annotations__)


def test_the_tables_are_those_of_the_library():
    assert len(dtypes.NAMES) == len(dtypes.DTYPES) == 3
    plain = set(requests._PLAIN)
    assert plain | {"ranks", "tensors", "partials", "timeout"} == set(agmm.JobOptions.__annotations__)
    attributes = set(requests._PLAIN.values()) | {"spec", "a", "b", "c", "ranks", "tensors", "partials", "timeout_ms"}
    assert attributes == {name for name in vars(_agmm.JobRequest) if not name.startswith("_")}


def test_the_listed_names_are_those_of_users():
    assert set(dir(agmm)) == {*agmm.__all__, "aio", "__version__"}
    code = "import agmm, sys; assert 'agmm.aio' not in sys.modules; agmm.aio.connect; agmm.nothing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.endswith("AttributeError: module 'agmm' has no attribute 'nothing'\n"), done.stderr


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_a_missing_package_does_not_disturb_others(name):
    code = f"""
import sys
sys.modules["{name}"] = None  # its import fails
import agmm, pydoc
assert "class Client" in pydoc.render_doc(agmm, renderer=pydoc.plaintext)
assert not hasattr(agmm, "{name}")
try:
    agmm.{name}
except AttributeError as error:
    assert str(error) == "agmm.{name} needs the package {name}: pip install {name}", error
    assert isinstance(error.__cause__, ModuleNotFoundError)
for statement in ("import agmm.{name}", "from agmm import {name}"):
    try:
        exec(statement)
        sys.exit("there is no error")
    except ModuleNotFoundError as error:
        assert error.name == "{name}"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
