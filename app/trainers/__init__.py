"""One module per trainer: recognise it, find the config that rules, read and write its knobs, resume it."""
