package migrations_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/migrations"
)

// breaks returns what a migration has removed that the release before it uses.
func breaks(before, after schema) (faults []string) {
	for name, facts := range before {
		if after[name] == nil {
			faults = append(faults, name+" is gone")
			continue
		}
		for property, value := range facts {
			kind, _, _ := strings.Cut(property, " ")
			is := after[name][property]
			if slices.Contains([]string{"returns", "column", "constraint", "right", "trigger"}, kind) && is != value && is != strings.TrimSuffix(value, " not null") {
				faults = append(faults, fmt.Sprintf("%s: %s is %q, not %q", name, property, is, value))
			}
		}
	}
	return faults
}

func TestMigrationsKeepWhatTheReleaseBeforeNeeds(t *testing.T) {
	if migrations.Version() < migrations.Released {
		t.Fatalf("version %d was released, and the last is %d", migrations.Released, migrations.Version())
	}
	onEach(t, func(t *testing.T, db database) {
		conn, before := create(t, db.Postgres, "TEMPLATE template0").admin(t), schema{}
		for version := migrations.Released; version <= migrations.Version(); version++ {
			if err := (migrations.Options{}).To(version).Apply(t.Context(), conn, nil); err != nil {
				t.Fatal(err)
			}
			after := readSchema(t, conn)
			for _, fault := range breaks(before, after) {
				t.Errorf("migration %d takes away what version %d has: %s. CONTRIBUTING.md says how to do it in two releases", version, version-1, fault)
			}
			before = after
		}
	})
}

// The rule finds violations, in invented migrations. One that fails is a violation, too.
func TestTheRuleOfMigrations(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		before := readSchema(t, db.admin(t))
		for sql, want := range map[string]bool{
			"DROP FUNCTION wirefence.identity() CASCADE;": true,
			"DROP FUNCTION IF EXISTS wirefence.identity() CASCADE; CREATE FUNCTION wirefence.identity() RETURNS int LANGUAGE sql AS 'SELECT 1';": true,
			"DROP TABLE wirefence.leases CASCADE;":                                                                                             true,
			"ALTER TABLE wirefence.resource_locks DROP COLUMN holder CASCADE;":                                                                 true,
			"ALTER TABLE wirefence.resource_locks DROP CONSTRAINT resource_locks_pkey CASCADE;":                                                true,
			"ALTER TABLE wirefence.resource_locks RENAME COLUMN holder TO name;":                                                               true,
			"ALTER TABLE wirefence.history ALTER COLUMN proxy TYPE varchar;":                                                                   true,
			"ALTER TABLE wirefence.resource_locks ALTER holder SET NOT NULL;":                                                                  true,
			"ALTER FUNCTION wirefence.identity() RENAME TO who;":                                                                               true,
			"REVOKE EXECUTE ON FUNCTION wirefence.identity() FROM wirefence_issuer;":                                                           true,
			"DROP TRIGGER note_first ON wirefence.resource_locks;":                                                                             true,
			"CREATE OR REPLACE FUNCTION wirefence.identity() RETURNS text LANGUAGE sql AS 'SELECT ''DROP''';":                                  false,
			"ALTER TABLE wirefence.resource_locks ADD COLUMN note text;":                                                                       false,
			"CREATE FUNCTION wirefence.newer() RETURNS int LANGUAGE sql AS 'SELECT 1'; GRANT EXECUTE ON FUNCTION wirefence.newer() TO PUBLIC;": false,
			"DROP FUNCTION IF EXISTS wirefence.never_there();":                                                                                 false,
		} {
			conn := create(t, db.Postgres, "TEMPLATE "+template).admin(t)
			mustExec(t, conn, sql)
			if got := breaks(before, readSchema(t, conn)); (len(got) > 0) != want {
				t.Errorf("%s: %q", sql, got)
			}
		}
	})
}
