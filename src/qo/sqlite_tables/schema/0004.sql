-- Which builds of qo may use this database: see docs/formats.md. `user_version` says which number holds.

CREATE TABLE formats (
    number INTEGER PRIMARY KEY,
    since INTEGER NOT NULL,  -- builds that know this number may use the database
    qo TEXT NOT NULL  -- the version that brought it to this format
);
