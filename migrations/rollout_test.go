package migrations

import (
	"fmt"
	"regexp"
	"slices"
	"testing"
)

// released is the version of the first release's schema. From there on each migration
// keeps what the version before it has: processes of two releases run side by side, and
// the newer release may be rolled back.
const released = 14

// breaking matches statements that remove something that a running release uses.
var breaking = []*regexp.Regexp{
	regexp.MustCompile(`(?is)^ALTER\s+TABLE\s.*\b(DROP\s+(COLUMN|CONSTRAINT)|RENAME|TYPE)\b`),
	regexp.MustCompile(`(?is)^ALTER\s+TABLE\s.*\bSET\s+NOT\s+NULL\b`),
	regexp.MustCompile(`(?is)^ALTER\s+(FUNCTION|VIEW|SEQUENCE|SCHEMA)\s.*\bRENAME\b`),
	regexp.MustCompile(`(?is)^(DROP\s+(SCHEMA|TRIGGER)|REVOKE)\s`),
}

// breaks returns what a migration removes from the earlier schema.
func breaks(before *installed, migration string) (faults []string) {
	for _, statement := range statements(migration) {
		if slices.ContainsFunc(breaking, func(r *regexp.Regexp) bool { return r.MatchString(statement) }) {
			faults = append(faults, oneLine(statement))
			continue
		}
		if m := functionDrop.FindStringSubmatch(statement); m != nil && before.functions[oneLine(m[1])] != nil {
			faults = append(faults, fmt.Sprintf("function %s is dropped", oneLine(m[1])))
		}
		if m := relationDrop.FindStringSubmatch(statement); m != nil && before.relations[m[1]] != "" {
			faults = append(faults, fmt.Sprintf("%s is dropped", m[1]))
		}
	}
	return faults
}

func TestMigrationsKeepWhatTheReleaseBeforeNeeds(t *testing.T) {
	if Version() < released {
		t.Fatalf("version %d was released, and the last is %d", released, Version())
	}
	for v := released; v < Version(); v++ {
		before, err := expectedAt(v)
		if err != nil {
			t.Fatal(err)
		}
		for _, fault := range breaks(before, source(numbered()[v])) {
			t.Errorf("%s takes away what version %d has: %s. docs/upgrades.md says how to do it in two releases", numbered()[v], v, fault)
		}
	}
}

// The rule finds violations, in invented migrations.
func TestTheRuleOfMigrations(t *testing.T) {
	before, err := expected()
	if err != nil {
		t.Fatal(err)
	}
	for sql, want := range map[string]bool{
		"DROP FUNCTION wirefence.identity();": true,
		"DROP FUNCTION IF EXISTS wirefence.identity(); CREATE FUNCTION wirefence.identity() RETURNS int LANGUAGE sql AS 'SELECT 1';": true,
		"DROP TABLE wirefence.leases;":                                                                                                     true,
		"ALTER TABLE wirefence.resource_locks DROP COLUMN holder;":                                                                         true,
		"ALTER TABLE wirefence.resource_locks RENAME COLUMN holder TO name;":                                                               true,
		"ALTER TABLE wirefence.resource_locks ALTER COLUMN holder TYPE bytea;":                                                             true,
		"ALTER TABLE wirefence.resource_locks ALTER holder SET NOT NULL;":                                                                  true,
		"ALTER FUNCTION wirefence.identity() RENAME TO who;":                                                                               true,
		"REVOKE EXECUTE ON FUNCTION wirefence.identity() FROM PUBLIC;":                                                                     true,
		"CREATE OR REPLACE FUNCTION wirefence.identity() RETURNS text LANGUAGE sql AS 'SELECT ''DROP''';":                                  false,
		"ALTER TABLE wirefence.resource_locks ADD COLUMN note text;":                                                                       false,
		"CREATE FUNCTION wirefence.newer() RETURNS int LANGUAGE sql AS 'SELECT 1'; GRANT EXECUTE ON FUNCTION wirefence.newer() TO PUBLIC;": false,
		"DROP FUNCTION wirefence.never_there();":                                                                                           false,
	} {
		if got := breaks(before, sql); (len(got) > 0) != want {
			t.Errorf("%s: %q", sql, got)
		}
	}
}
