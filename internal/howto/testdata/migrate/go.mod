// golang-migrate, which docs/howto/migrations.md runs.
module github.com/wirefence/wirefence/internal/howto/testdata/migrate

go 1.26.0

require github.com/golang-migrate/migrate/v4 v4.20.1
