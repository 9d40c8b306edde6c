-- ARGV = name
call('HDEL', note_place(ARGV[1]), ARGV[1])
