"""`python -m tunewarden`, and the console script."""

from tunewarden.cli import main

if __name__ == "__main__":
    main()
