-- ARGV = name
call('HDEL', notes_key(ARGV[1]), ARGV[1])
