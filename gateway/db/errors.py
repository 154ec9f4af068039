"""What can go wrong with the database, in our own words."""


class DatabaseError(Exception):
    """The database cannot do what was asked."""


class MissingDriver(DatabaseError):
    """The URL needs a driver that is not installed; the message names the extra."""


class BadUrl(DatabaseError):
    """The URL names no database that we can use."""


class Unwritable(DatabaseError):
    """A value does not fit where it should go: trying again does not help."""


class Unavailable(DatabaseError):
    """The database cannot be reached, stays locked, or refuses the statement."""
