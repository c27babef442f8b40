"""Options in the words of a command line, taken out and put in, as argparse reads them."""

from collections.abc import Sequence


def without(words: Sequence[str], first: int, *options: str) -> list[str]:
    """`words` without these options and their values, from words[first] on. A value never begins with a dash."""
    kept, position = list(words[:first]), first
    while position < len(words):
        word = words[position]
        if word == "--":
            return [*kept, *words[position:]]
        if word in options:
            position += 2 if words[position + 1 : position + 2] and not words[position + 1].startswith("-") else 1
            continue
        if word.partition("=")[0] not in options:
            kept.append(word)
        position += 1
    return kept


def with_words(words: Sequence[str], first: int, *more: str) -> list[str]:
    """`words` with more at the end of the program's own, before a `--` that hands the rest to somebody else."""
    end = next((i for i in range(first, len(words)) if words[i] == "--"), len(words))
    return [*words[:end], *more, *words[end:]]


def with_option(words: Sequence[str], first: int, option: str, value: str | None = None) -> list[str]:
    """`words` with `option` said once, at the end: `--option=value`, or a switch."""
    written = option if value is None else f"{option}={value}"
    return with_words(without(words, first, option), first, written)
