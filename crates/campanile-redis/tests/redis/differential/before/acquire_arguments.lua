-- Gives a script of before details existed its arguments: the floor is part of each item, and details
-- are no arguments.
local sent, ARGV = ARGV, {}
for i = 1, 4 do ARGV[i] = sent[i] end
for i = 5, 4 + #KEYS do ARGV[i] = sent[i] .. struct.pack('>I8', tonumber(sent[4])) end
