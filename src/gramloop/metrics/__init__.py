"""From stored per-image statistics to scores, means over shifts, and intervals; numpy, and scipy for Student's t."""
