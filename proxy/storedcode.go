package proxy

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/engine"
	"github.com/wirefence/wirefence/proxy/internal/session"
)

// storedCodeSQL asks whether code that is stored in the database interferes with fences.
// The proxy asks the database of its own connection every 15 s, and others at logins. Each
// time it also looks whether that is one database.
const storedCodeSQL = `SELECT pg_catalog.current_database(), CASE WHEN pg_catalog.to_regprocedure('wirefence.stored_code_interferes()') IS NOT NULL THEN wirefence.stored_code_interferes() END`

// storedCodePoll is that question.
func (s *Server) storedCodePoll() poll {
	return poll{
		ask:     s.askForStoredCode,
		timeout: s.options.ConnectTimeout,
		next:    func() time.Duration { return session.AskInterval },
		failing: "cannot look for stored code that interferes with fences, retrying: log in to WIREFENCE_DATABASE_URL by hand, and mend what fails there. Until then new stored code is found at logins only",
		working: "looking for stored code that interferes with fences again",
	}
}

func (s *Server) askForStoredCode(ctx context.Context, db *pgx.Conn) error {
	var name string
	var interferes *bool
	sent := time.Now()
	if err := db.QueryRow(ctx, storedCodeSQL).Scan(&name, &interferes); err != nil {
		return err
	}
	faults, err := engine.Single(ctx, db)
	if err != nil {
		return err
	}
	if s.databases.SetSharded(name, len(faults) > 0) && len(faults) > 0 {
		s.options.Logger.Error("fenced sessions are refused: "+faults[0].Says+": "+faults[0].Means, "database", name)
	}
	if interferes != nil {
		s.databases.Learn(name, *interferes, sent)
	}
	return nil
}
