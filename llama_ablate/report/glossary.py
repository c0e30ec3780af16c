"""Glossary of report terms, for the HTML page, read from `glossary.txt`."""

from llama_ablate.findings.warnings import read_entries

#: Meanings by term, in the order in which a reader of a report meets the terms.
GLOSSARY = read_entries("llama_ablate.report", "glossary.txt")
