package proxy

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/proxy/internal/session"
)

// storedCodeSQL asks whether code that is stored in the database interferes with fences.
// The proxy asks the database of its own connection every 15 s, and others at logins.
const storedCodeSQL = `SELECT pg_catalog.current_database(), CASE WHEN pg_catalog.to_regprocedure('wirefence.stored_code_interferes()') IS NOT NULL THEN wirefence.stored_code_interferes() END`

// startStoredCodePolling polls the database of the proxy's own connection for stored code
// that interferes. It returns the function that stops that.
func (s *Server) startStoredCodePolling() (stop func()) {
	if s.options.DatabaseURL == "" || s.config.Mode == session.Off {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var polling sync.WaitGroup
	polling.Go(func() { s.pollStoredCode(ctx) })
	return func() {
		cancel()
		polling.Wait()
	}
}

// pollStoredCode logs no failure: sessions ask at their logins as well, and /readyz
// reports a database that can't be reached.
func (s *Server) pollStoredCode(ctx context.Context) {
	var db *pgx.Conn
	defer func() {
		if db != nil {
			_ = db.Close(context.Background())
		}
	}()
	ticks := time.NewTicker(session.AskInterval)
	defer ticks.Stop()
	for {
		db = s.queryStoredCode(ctx, db)
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
	}
}

// queryStoredCode asks once on db, or on a new connection if db is nil. It returns the
// connection for the next time, nil if that is broken.
func (s *Server) queryStoredCode(ctx context.Context, db *pgx.Conn) *pgx.Conn {
	ctx, cancel := context.WithTimeout(ctx, s.options.ConnectTimeout)
	defer cancel()
	if db == nil {
		var err error
		if db, err = pgx.Connect(ctx, s.options.DatabaseURL); err != nil {
			return nil
		}
	}
	var name string
	var interferes *bool
	era := s.databases.Era()
	err := db.QueryRow(ctx, storedCodeSQL, pgx.QueryExecModeExec).Scan(&name, &interferes)
	switch {
	case err != nil:
		_ = db.Close(context.Background())
		return nil
	case interferes != nil:
		s.databases.Learn(name, *interferes, era)
	}
	return db
}
