"""Questions of seven data sets: parsers, selection and gold passages."""
