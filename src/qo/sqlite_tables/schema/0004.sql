-- Which builds of qo may use this database: see docs/formats.md. `user_version` is the number of the current row.

CREATE TABLE formats (
    number INTEGER PRIMARY KEY,
    since INTEGER NOT NULL,  -- builds that know this format may use the database
    qo TEXT NOT NULL  -- the version of qo that migrated the database
);
