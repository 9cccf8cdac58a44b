"""What happens to an observation before it is journalled: facts taken, secrets redacted, content bounded. Pure; no
I/O."""
