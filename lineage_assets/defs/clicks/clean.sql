SELECT
  event_id,
  user_id,
  session_id,
  event_type,
  page,
  lower(email) AS email,
  amount_cents,
  occurred_at
FROM records
