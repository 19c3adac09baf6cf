select
    date_trunc('hour', occurred_at) as hour,
    event_type,
    count(*) as events,
    count(distinct user_id) as users,
    count(*) filter (where _late_by_s > 0) as late_events
from {{ source('silver', 'clicks') }}
group by 1, 2
