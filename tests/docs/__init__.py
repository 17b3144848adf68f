"""Tests of the pages: their code, the site that is made of them, and the calculator."""
