#!/bin/bash
# Run once by the image of PostgreSQL when it makes its cluster: the application
# gets a role without superuser rights and a database of its own; the proxy gets
# one that may seal and revoke, and nothing else.
set -euo pipefail

psql --set=ON_ERROR_STOP=1 --set=app="$APP_PASSWORD" --set=issuer="$ISSUER_PASSWORD" \
  --username "$POSTGRES_USER" --dbname postgres <<'SQL'
CREATE ROLE app LOGIN PASSWORD :'app';
CREATE DATABASE app OWNER app;
CREATE ROLE wirefence_issuer NOLOGIN;
CREATE ROLE wirefence_bypass NOLOGIN;
CREATE ROLE wirefence LOGIN PASSWORD :'issuer' IN ROLE wirefence_issuer;
SQL
