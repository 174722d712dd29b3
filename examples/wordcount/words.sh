# The definition of a word, shared by driver and executors: letters with apostrophes between them,
# in lower case. Lines are never joined, so a text may be cut at any line.

LC_ALL=C
export LC_ALL

# Reads text, writes one word a line.
words() {
    tr 'A-Z' 'a-z' | tr -cs "a-z'" '\n' | sed "s/^'*//; s/'*\$//; /^\$/d"
}

# Reads text, writes "count word" lines sorted by word.
count() {
    words | sort | uniq -c | sed 's/^ *//'
}
