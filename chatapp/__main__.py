"""`python -m chatapp` is `chatapp`."""

from chatapp.cli import main

if __name__ == "__main__":
    main()
