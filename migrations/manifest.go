package migrations

import (
	"crypto/md5"
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// object is what the migrations create, as drift.sql finds it in a database that was just
// migrated. The test TestTheManifest writes manifest.json.
type object struct {
	Since int                 // the version that creates it
	Facts map[string][]string // the values that a property may have
}

//go:embed manifest.json
var manifestJSON []byte

// manifest has the objects of this version by kind and name: "function wirefence.name(type, …)",
// "table wirefence.name", which is also a view or a sequence, and "schema wirefence".
var manifest = sync.OnceValue(func() (all map[string]object) {
	if err := json.Unmarshal(manifestJSON, &all); err != nil {
		panic("migrations: manifest.json: " + err.Error())
	}
	return all
})

// functionsOf returns the signatures of the functions that a version has.
func functionsOf(version int) (all []string) {
	for name, o := range manifest() {
		if signature, ok := strings.CutPrefix(name, "function "); ok && o.Since <= version {
			all = append(all, signature)
		}
	}
	slices.Sort(all)
	return all
}

// IdentitySQL returns the statement that makes wirefence.identity ask the server, for a schema
// that was created where the server did not report its identity. wirefence_owner must run it.
func IdentitySQL() string { return definition("function wirefence.identity()") }

// creation matches a statement that creates an object; its last quoted part is a function's body.
var creation = regexp.MustCompile(`(?m)^ *CREATE (?:OR REPLACE )?(?:UNLOGGED )?(FUNCTION|AGGREGATE|TABLE|VIEW|SEQUENCE|TRIGGER) (?:IF NOT EXISTS )?([\w.]+)` +
	`(?:\$\$((?s:.*?))\$\$|'[^']*'|--[^\n]*|[^;'])*?;`)

var create = regexp.MustCompile(`^CREATE (FUNCTION|AGGREGATE)`)

// definition returns the statement of the migrations that creates an object. Among overloaded
// functions it is the one with the body of the manifest. A function that is replaced when it is
// called for has its last definition, which refuses more than the ones before.
func definition(name string) (statement string) {
	kind, id, _ := strings.Cut(name, " ")
	id, _, _ = strings.Cut(id, "(")
	for _, m := range definitions()[kind+" "+id] {
		statement = strings.TrimSuffix(create.ReplaceAllString(strings.TrimSpace(m[0]), "CREATE OR REPLACE $1"), ";")
		if slices.Contains(manifest()[name].Facts["body"], fmt.Sprintf("%x", md5.Sum([]byte(m[3])))) {
			break
		}
	}
	return statement
}

// definitions has the matches of creation by kind and name, in the order of the migrations.
var definitions = sync.OnceValue(func() map[string][][]string {
	all := map[string][][]string{}
	var read func(sql string)
	read = func(sql string) {
		for _, m := range creation.FindAllStringSubmatch(sql, -1) {
			kind := strings.ToLower(m[1])
			switch kind {
			case "aggregate":
				kind = "function"
			case "view", "sequence":
				kind = "table"
			}
			all[kind+" "+m[2]] = append(all[kind+" "+m[2]], m)
			read(m[3]) // a function may replace another
		}
	}
	read(versionTableSQL)
	for _, name := range numbered() {
		read(source(name))
	}
	return all
})
