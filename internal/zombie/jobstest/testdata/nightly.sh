# A cron job: it reads, computes for a while, and writes.
set -e
orders=$(psql -XAtq -c "INSERT INTO runs DEFAULT VALUES" -c "SELECT count(*) FROM orders")
sleep 1
psql -Xq -v ON_ERROR_STOP=1 -c "UPDATE totals SET orders = $orders, by = 'nightly $$'"
