package proxy

import (
	"context"
	_ "embed"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/engine"
	"github.com/wirefence/wirefence/proxy/internal/session"
)

// schemaSQL asks for the database's name, and whether it has the schema.
//
//go:embed unlocks.sql
var schemaSQL string

// unlocksPoll asks the database of the proxy's own connection every 15 s whether a function of it
// may release advisory locks, which are what sessions hold. Others are asked at logins. Each time
// it also looks whether that is one database.
func (s *Server) unlocksPoll() poll {
	return poll{
		ask:     s.askForUnlocks,
		timeout: s.options.ConnectTimeout,
		next:    func() time.Duration { return session.AskInterval },
		failing: "cannot look for functions that release advisory locks, retrying: log in to WIREFENCE_DATABASE_URL by hand, and mend what fails there. Until then new ones are found at logins only",
		working: "looking for functions that release advisory locks again",
	}
}

func (s *Server) askForUnlocks(ctx context.Context, db *pgx.Conn) error {
	var name string
	var hasSchema, unlocks bool
	sent := time.Now()
	if err := db.QueryRow(ctx, schemaSQL).Scan(&name, &hasSchema); err != nil {
		return err
	}
	if err := db.QueryRow(ctx, session.UnlocksSQL).Scan(&unlocks); err != nil {
		return err
	}
	faults, err := engine.Single(ctx, db)
	if err != nil {
		return err
	}
	if s.databases.SetSharded(name, len(faults) > 0) && len(faults) > 0 {
		s.options.Logger.Error("fenced sessions are refused: "+faults[0].Says+": "+faults[0].Means, "database", name)
	}
	if hasSchema {
		s.databases.Learn(name, unlocks, sent)
	}
	return nil
}
