-- drop_audit: removes the chain of a removed tree, which begins again with the next decision, unless it has decisions.
-- KEYS   audit
-- Output "dropped" | "in use"
if redis.call('XLEN', K.audit) > 0 then return answer('in use') end
redis.call('UNLINK', K.audit)
return answer('dropped')
