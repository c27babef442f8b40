"""The words: templates and tables in Chinese and English, and how a notice becomes a message that fits."""
