-- save_grant: writes a wider grant into the slot of its workspace; the tree that created it becomes its first user.
-- KEYS   grants, users
-- ARGV   id, root; bytes: grant
-- Output "saved"
redis.call('HSETNX', K.grants, step.id, B.grant)
redis.call('SADD', K.users, step.root)
return answer('saved')
