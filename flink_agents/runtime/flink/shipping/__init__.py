"""Ships the user's code to workers, and distinguishes its versions."""
