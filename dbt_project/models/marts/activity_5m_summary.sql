select
    window_start,
    window_end,
    count(*) as active_users,
    cast(sum(event_count) as bigint) as events,
    cast(sum(sessions) as bigint) as sessions
from {{ source('gold', 'user_activity_5m') }}
group by window_start, window_end
