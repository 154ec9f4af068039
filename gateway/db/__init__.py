"""The database: its tables, their migrations, and the queries the rest may make."""
