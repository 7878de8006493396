"""How a benchmark runs: options, cells, measurements, what is sent, figures and reports. No entry point lies here."""
