#!/bin/bash
# Two runs of a job, statement by statement in a psql for each connection: the first run is frozen,
# its lock ends, the second has its turn, and the first goes on. At the end it shows the tables that
# the first has written to then. libpq's variables name the server.
declare -A pid to
folder=$(mktemp -d)
trap 'kill -KILL "${pid[@]}" 2>/dev/null; rm -rf "$folder"' EXIT

connect() {
	mkfifo "$folder/$1"
	psql -XAqt <"$folder/$1" >"$folder/$1.out" 2>&1 &
	pid[$1]=$!
	exec {fd}>"$folder/$1"
	to[$1]=$fd
}

# say sends a statement, and waits until it has ended.
say() {
	printf '%s\n;\n\\echo ended %s\n' "$2" $((++said)) >&"${to[$1]}"
	until grep -qx "ended $said" "$folder/$1.out"; do sleep 0.02; done
}

hang_up() {
	printf '\\q\n' >&"${to[$1]}" # later sessions have its end of the pipe, too
	exec {to[$1]}>&-
	wait "${pid[$1]}"
	unset "pid[$1]"
}

# The sessions of the first run.
signal() {
	for session in "${!pid[@]}"; do
		if [[ $session == first* ]]; then kill "-$1" "${pid[$session]}"; fi
	done
}
freeze() { signal STOP; }
thaw() { signal CONT; }

