-- For scripts that read or change ready tasks: their members must all be of this format. Opening a queue migrates it, so this
-- refuses a call only if an older backup was restored since, or while another process migrates that.
if not stored_format[2] and call('EXISTS', PREFIX .. ':lanes') == 0 then -- a new queue; before format 3 :lanes named all lanes
  call('HSET', PREFIX .. ':format', 'format', FORMAT, 'since', {since}, 'qo', '{qo}')
elseif not stored_format[2] or tonumber(stored_format[2]) < FORMAT or stored_format[3] then
  return redis.error_reply('QOMIGRATE this queue has the format of an earlier qo, or is being migrated; run qo migrate')
end
