-- ARGV = name
call('HDEL', P .. ':notes', ARGV[1])
