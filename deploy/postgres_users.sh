#!/bin/sh
# Creates a user for each role, with its password from the environment. Postgres' image runs it when
# it creates the database; to run it again:
#   docker compose exec postgres sh /docker-entrypoint-initdb.d/users.sh
# `millrace database grants` gives the users their rights.
set -eu

for role in api intake batcher results_writer finaliser webhooks; do
  variable="POSTGRES_$(echo "$role" | tr a-z A-Z)_PASSWORD"
  PASSWORD="$(printenv "$variable")" psql --quiet --set ON_ERROR_STOP=1 \
    --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<SQL
\\getenv password PASSWORD
SELECT 'CREATE ROLE millrace_$role LOGIN'
  WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'millrace_$role') \\gexec
ALTER ROLE millrace_$role PASSWORD :'password';
SQL
done
