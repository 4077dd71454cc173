"""Values between Python and PyFlink: types of outputs, rows of tables, timestamps."""
