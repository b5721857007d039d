from docs.pictures import IMAGES, pictures


def test_the_pictures_are_what_the_script_draws() -> None:
    for name, picture in pictures().items():
        assert (IMAGES / f"{name}.svg").read_text() == picture, f"run python docs/pictures.py: {name} has changed"
