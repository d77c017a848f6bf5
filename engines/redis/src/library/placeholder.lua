#!lua name=waterline
redis.register_function({ function_name = 'wl_version', flags = { 'no-writes' }, callback = function() return { 1, 1 } end })
redis.register_function({ function_name = 'wl_greet', callback = function(keys, args) return redis.call('HSET', keys[1], 'run', args[2]) end })
