"""A secret by value, environment or file: what stands around it is no part of it."""

import pytest

from gateway.settings import SettingsError, secret


def test_white_space_around_a_secret_is_no_part_of_it(tmp_path):
    file = tmp_path / "key"
    file.write_text("sk-1\n")
    assert secret(None, None, str(file)) == "sk-1"
    assert secret(None, "KEY", None, {"KEY": " sk-1\r\n"}) == "sk-1"
    assert secret("sk-1\n", None, None) == "sk-1"


@pytest.mark.parametrize("environ", [{}, {"KEY": ""}, {"KEY": " \n"}])
def test_an_empty_secret_is_told(environ):
    with pytest.raises(SettingsError, match="KEY"):
        secret(None, "KEY", None, environ)
