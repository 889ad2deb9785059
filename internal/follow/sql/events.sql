-- What wirefence.history() returns since a time, but for rows of before that have only
-- counted on, so that an index leads to it, however long the history is.
SELECT to_jsonb(newest)
FROM (SELECT u.*
      FROM ((SELECT h.* FROM wirefence.history AS h
             WHERE h.issued AND h.at >= $1::timestamptz
               AND ($2::bytea IS NULL OR h.resource = convert_from($2::bytea, 'UTF8')) AND ($3::text[] IS NULL OR h.kind = ANY ($3::text[]))
             ORDER BY h.at DESC, h.id DESC LIMIT $4::bigint)
            UNION ALL
            (SELECT h.* FROM wirefence.history AS h
             WHERE NOT h.issued AND h.at >= $1::timestamptz
               AND ($2::bytea IS NULL OR h.resource = convert_from($2::bytea, 'UTF8')) AND ($3::text[] IS NULL OR h.kind = ANY ($3::text[]))
             ORDER BY h.at DESC, h.id DESC LIMIT $4::bigint)
            UNION ALL
            (SELECT b.* FROM wirefence.bypass_history AS b
             WHERE b.at >= $1::timestamptz
               AND ($2::bytea IS NULL OR b.resource = convert_from($2::bytea, 'UTF8')) AND ($3::text[] IS NULL OR b.kind = ANY ($3::text[]))
             ORDER BY b.at DESC LIMIT $4::bigint)) AS u
      ORDER BY u.at DESC, u.id DESC LIMIT $4::bigint) AS newest
ORDER BY newest.at, newest.id
