"""Rules over what agents do: event sequences, repetitions and error rates, turned into findings."""
