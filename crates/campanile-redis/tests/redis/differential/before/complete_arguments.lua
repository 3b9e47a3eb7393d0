-- Gives a script of before details existed its arguments: each item has the kind of tail and the spare
-- byte before the token.
local sent, ARGV = ARGV, { ARGV[1] }
for i = 2, 1 + #KEYS do
  local done = sent[i]
  local kind = #done > 28 and done:sub(29, 29) or '\0'
  ARGV[i] = done:sub(1, 4) .. kind .. '\0' .. done:sub(5, 28) .. done:sub(30)
end
