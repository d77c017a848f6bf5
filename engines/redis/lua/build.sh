#!/bin/sh
# Joins the files of the library into one text for FUNCTION LOAD, in the order in which they need each other. A file begins
# with the names that later files use. The rest of it is in a block of its own, since a chunk of Lua has room for 200 names.
cd "$(dirname "$0")" || exit 1
cat base.lua
for file in job lines checks limits edges ends push plain sources claim notes workers tick clock turn finish steer look status open; do
    awk '!begun && /^local [a-z_]/ && !/=|function/ { names = 1 }
        !begun && (names ? /^$/ : /^local|^redis|^define/) { print "do"; begun = 1 }
        { print } END { print "end" }' $file.lua
done
