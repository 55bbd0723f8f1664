"""Statistics of timing: sampling, pairing, intervals, racing. No processes here."""
