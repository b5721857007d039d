"""legato.toml: it comes after the environment and before defaults, and a key that nobody reads is an error."""

import re
from pathlib import Path

import pytest

from legato.config_file import find_config_file
from legato.errors import InputError
from legato.settings import Found, Level, Settings, read_settings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(settings: Settings, name: str) -> Found:
    [one] = [each for each in settings.found if each.setting.name == name]
    return one


def test_an_argument_wins_then_the_environment_then_the_file_then_the_default(folder: Path) -> None:
    (folder / "legato.toml").write_text("servers = 1\n")
    levels = [
        (read_settings({"LEGATO_SERVERS": "2"}, num_servers=3), 3, Level.ARGUMENT, ""),
        (read_settings({"LEGATO_SERVERS": "2", "DMLC_NUM_SERVER": "4"}), 2, Level.ENVIRONMENT, "LEGATO_SERVERS"),
        (read_settings({"DMLC_NUM_SERVER": "4"}), 4, Level.ENVIRONMENT, "DMLC_NUM_SERVER"),
        (read_settings({}), 1, Level.FILE, f"{folder}/legato.toml:1"),
    ]
    (folder / "legato.toml").unlink()
    levels.append((read_settings({}), 0, Level.DEFAULT, ""))
    for settings, value, level, where in levels:
        one = found(settings, "servers")
        assert (settings.num_servers, one.value, one.level, one.where) == (value, value, level, where)


def test_every_kind_of_value(folder: Path) -> None:
    (folder / "legato.toml").write_text(
        """
        # a project's settings
        partition_bytes = "256KiB"
        credit_bytes = 4000000
        timeout_s = 7.5
        shared_memory = false
        check = true
        policy = "fifo"
        conductor = "head:4000"
        timeline = "run.json"
        timeline_steps = "5-7"
        """
    )
    settings = read_settings({})
    assert (settings.partition_bytes, settings.credit_bytes, settings.timeout_s) == (256 << 10, 4_000_000, 7.5)
    assert (settings.shared_memory, settings.check, settings.policy) == (False, True, "fifo")
    assert (settings.conductor_host, settings.conductor_port) == ("head", 4000)
    assert settings.timeline is not None
    assert (settings.timeline.first_step, settings.timeline.last_step) == (5, 7)
    assert found(settings, "policy").where == f"{folder}/legato.toml:8"


def test_of_two_ways_to_say_the_same_the_environments_wins(folder: Path) -> None:
    (folder / "legato.toml").write_text('interface = "lo"\nkey_file = "/nowhere"\n')
    settings = read_settings({"LEGATO_HOST": "10.0.0.1", "LEGATO_KEY": "a spoken secret!"})
    assert (settings.host, settings.key) == ("10.0.0.1", b"a spoken secret!")
    with pytest.raises(InputError, match=r"^key_file in .*legato\.toml:2 is '/nowhere', which cannot be read"):
        read_settings({})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("partiton_bytes = 4", ":1: 'partiton_bytes' is not a setting; did you mean partition_bytes?"),
        ("\nsprocket = 4", ":2: 'sprocket' is not a setting; docs/environment.md lists them"),
        ("[network]\nthreads = 4", ":1: network is {'threads': 4}; accepted is one text, number, true or false"),
        ('key = "a written secret"', ":1: 'key' cannot be set in a file; set LEGATO_KEY"),
        ("servers = 1\nthreads = 0", ":2 is '0'; accepted is a whole number from 1 on"),
        ("threads = 2 2", " is not a TOML file: "),
    ],
)
def test_a_mistake_is_named_with_its_line(text: str, said: str, folder: Path) -> None:
    path = folder / "legato.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(f"{path}{said}")) as caught:
        read_settings({})
    assert "\n" not in str(caught.value)


def test_a_variable_names_another_file(folder: Path) -> None:
    (folder / "legato.toml").write_text("servers = 1")
    (folder / "other.toml").write_text("servers = 2")
    assert read_settings({"LEGATO_CONFIG": str(folder / "other.toml")}).num_servers == 2
    with pytest.raises(InputError, match=r"none\.toml cannot be read \(No such file"):
        read_settings({"LEGATO_CONFIG": "none.toml"})


def test_folders_above_count_within_a_repository_only(folder: Path) -> None:
    inner = folder / "a" / "b"
    inner.mkdir(parents=True)
    (folder / "legato.toml").touch()
    assert find_config_file(inner) is None
    (folder / ".git").mkdir()
    assert find_config_file(inner) == folder / "legato.toml"
    (folder / "a" / "legato.toml").touch()
    assert find_config_file(inner) == folder / "a" / "legato.toml"
    (inner / ".git").touch()  # a repository within: the outer one's file is not its own
    assert find_config_file(inner) is None
